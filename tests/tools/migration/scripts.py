"""Training scripts in the shapes that forks publish, in our own text; `test_shapes.py` says what each comes to."""

TRAIN = "python3 -m verl.trainer.main config=examples/config.yaml"

SHAPES = {
    "slurm with srun": f"""\
#!/bin/bash
#SBATCH --job-name=gui-rl
#SBATCH --nodes=2
#SBATCH --gres=gpu:a100:4
#SBATCH -t 24:00:00              # a day
##SBATCH --nodes=64
module load cuda
source ~/.bashrc && conda activate train
export WANDB_API_KEY=secret
mkdir -p logs
srun --overlap {TRAIN} worker.actor.model.model_path=org/policy worker.rollout.n=4 \\
  trainer.nnodes=$SLURM_NNODES trainer.n_gpus_per_node=${{SLURM_GPUS_ON_NODE}}
""",
    "slurm that starts ray by hand": """\
#!/bin/bash
#SBATCH --nodes=3
#SBATCH --gpus-per-node=8
set -x
MODEL=org/policy   # or a folder
if [ ! -d "$OUT" ]; then
    mkdir -p $OUT
fi
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
nodes_array=($nodes)
head=${nodes_array[0]}
address=$(srun --nodes=1 -w "$head" hostname --ip-address)
if [[ "$address" == *" "* ]]; then
IFS=' ' read -ra both <<<"$address"
if [[ ${#both[0]} -gt 16 ]]; then
  address=${both[1]}
else
  address=${both[0]}
fi
fi
srun -w "$head" /bin/bash -c "source env.sh && ray start --head --node-ip-address="$address" --block" &
sleep 10
for ((i = 1; i <= SLURM_JOB_NUM_NODES - 1; i++)); do
    srun -w "${nodes_array[$i]}" bash -c "ray start --address $address --block" &
done
srun --overlap -w "$head" /bin/bash -c \\
  "source env.sh \\
   && python -m verl.trainer.main \\
    config=examples/config.yaml \\
    worker.actor.model.model_path=${MODEL} worker.rollout.n=4 \\
    trainer.n_gpus_per_node=${SLURM_GPUS_PER_NODE} \\
    trainer.nnodes=${SLURM_NNODES} "
""",
    "ray job in a container": f"""\
PROMPT=\"\"\"Think first.
 Then act in \\boxed{{}}.\"\"\"
singularity exec --nv --bind /data:/data ~/train.sif \\
  ray job submit --address="http://127.0.0.1:8265" --no-wait -- \\
    {TRAIN} data.system_prompt="${{PROMPT}}" worker.actor.model.model_path=org/policy worker.rollout.n=4 \\
    2>&1 | tee x.log
""",
    "placeholders": f"""\
MODEL_PATH=/path/to/your/model
DATA="<where your tasks are>"
{TRAIN} \\
    worker.actor.model.model_path=${{MODEL_PATH}} data.train_files="$DATA/train.json" data.val_files=${{TASKS}} \\
    trainer.project_name="" trainer.n_gpus_per_node=$N_GPUS worker.rollout.n=4
""",
    "defaults and a date": """\
set -euo pipefail
GPUS=${GPUS:-8}
: "${MODEL:=org/policy}"
if [ -z "$EPOCHS" ]; then EPOCHS=3; fi
[ -z "${SEED:-}" ] && SEED=7
NAME=${NAME:-gui_$(date +%Y%m%d)}
ENVS=32; N=4
((PROMPTS = ENVS / N))
torchrun --nproc_per_node=$GPUS -m verl.trainer.main config=examples/config.yaml trainer.experiment_name=$NAME \\
    data.rollout_batch_size=$PROMPTS worker.actor.global_batch_size=$((PROMPTS * 2 - 1)) worker.rollout.n=$N \\
    worker.actor.model.model_path="$MODEL" trainer.n_gpus_per_node=${GPUS} \\
    trainer.total_epochs=$EPOCHS data.seed=$SEED
""",
    "a guard and a resumed run": f"""\
if [ "$#" -lt 1 ]; then echo "usage: $0 MODEL"; exit 1; fi
if ! ray status > /dev/null 2>&1; then ray start --head; fi
MODEL=$1
RESUME=""
if [ -f last.txt ]; then
  STEP=$(cat last.txt)
  RESUME="trainer.load_checkpoint_path=runs/$STEP"
fi
if [ ! -f tasks.json ]; then
python3 << 'EOF'
for n in range(3): print("it's {{ not shell")
EOF
fi
nohup {TRAIN} worker.actor.model.model_path=$MODEL worker.rollout.n=4 ${{RESUME}} "${{@:2}}" > log 2>&1 &
""",
    "arrays of options": f"""\
COMMON=(
    worker.actor.model.model_path=org/policy   # theirs
    'trainer.logger=["console","wandb"]'
)
EXTRA="trainer.nnodes=2 worker.rollout.n=4"
COMMON+=(data.seed=5 trainer.save_freq=9)
CUDA_VISIBLE_DEVICES=0,1 {TRAIN} $EXTRA "${{COMMON[@]}}"
""",
    "a function and a loop": f"""\
train() {{
    local name=$1 rate=$2
    {TRAIN} worker.actor.model.model_path=$MODEL worker.rollout.n=4 \\
        trainer.experiment_name=$name worker.actor.optim.lr=$rate
}}
MODEL=org/policy
for pair in HF_HOME=/data NCCL_DEBUG=WARN; do export "$pair"; done
for rate in 1e-6 5e-7; do
    train "gui_$rate" $rate
done
""",
    "a case for each size": f"""\
SIZE=${{1:-7b}}
case "$SIZE" in
  3b) MODEL=org/small; N=8 ;;
  7b|8b) MODEL=org/policy; N=4 ;;
  *) echo "unknown"; exit 1 ;;
esac
if [ "$SIZE" = 7b ]; then TP=2; else TP=1; fi
{TRAIN} worker.actor.model.model_path=$MODEL worker.rollout.n=$N worker.rollout.tensor_parallel_size=$TP
""",
    "two stages": f"""\
{TRAIN} worker.actor.model.model_path=org/policy worker.rollout.n=4 trainer.experiment_name=stages trainer.max_steps=100
python3 scripts/model_merger.py --local_dir checkpoints/stages && sleep 5
{TRAIN} worker.actor.model.model_path=checkpoints/stages worker.rollout.n=8 trainer.experiment_name=stages
""",
    "a job that it writes": f"""\
SEED=3
cat <<EOF > job.sh
#!/bin/bash
#SBATCH --nodes=1
{TRAIN} worker.actor.model.model_path=org/policy worker.rollout.n=4 data.seed=$SEED trainer.nnodes=\\$NODES
EOF
sbatch job.sh
""",
    "a comment in the command": f"""\
{TRAIN} \\
    worker.actor.model.model_path=org/policy worker.rollout.n=4 \\
    # data.seed=2 \\
    data.shuffle=false \\
    trainer.save_freq=3
""",
}
"""Shape -> script. Each trains with `worker.rollout.n=4` first."""
