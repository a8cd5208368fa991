#!/bin/bash
# sbatch slurm-job.sh, or a line of scrontab: 15 2 * * * /shared/dpca/slurm-job.sh
#
# Runs job.toml on one node. Slurm sends SIGTERM a minute before the time limit; submit the same job again to resume.
# For more nodes, set cluster = "slurm.toml" instead of workers in job.toml.
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
