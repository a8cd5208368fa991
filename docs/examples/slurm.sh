#!/bin/bash
# sbatch slurm.sh SOURCE OUTPUT
#
# Runs the program that plans the work and starts workers, as a small and long job. Slurm sends SIGTERM a minute before the
# time limit: the program stops its workers and itself. Submit the same job again to resume.
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
srun dpca scores "$1" "$2" --target-psnr 33 --cluster /shared/dpca/slurm.toml
