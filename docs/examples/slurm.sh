#!/bin/bash
# sbatch slurm.sh SOURCE OUTPUT
#
# The program that plans the work and asks for workers, as a job that needs little and lasts long. Slurm warns it a minute
# before the time is over: it ends its workers and itself, and the same job, submitted again, goes on where it was.
#SBATCH --job-name=dpca
#SBATCH --partition=long
#SBATCH --account=imaging
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=2
#SBATCH --mem=8G
#SBATCH --time=2-00:00:00
#SBATCH --signal=TERM@60
set -eu
source /shared/dpca/.venv/bin/activate
srun dpca compress "$1" "$2" --target-psnr 33 --cluster /shared/dpca/slurm.toml
