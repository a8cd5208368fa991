#!/bin/bash
# sbatch slurm-job.sh, or a line of scrontab: 15 2 * * * /shared/dpca/slurm-job.sh
#
# One node does what job.toml asks for. Slurm warns it a minute before the time is over, and the same job, submitted again,
# goes on. For more nodes give cluster = "slurm.toml" in job.toml in the place of workers.
#SBATCH --job-name=dpca-job
#SBATCH --partition=standard
#SBATCH --account=imaging
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=32G
#SBATCH --time=12:00:00
#SBATCH --signal=TERM@60
set -eu
source /shared/dpca/.venv/bin/activate
srun dpca job run /shared/dpca/job.toml
