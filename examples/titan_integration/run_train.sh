#!/usr/bin/env bash
# Stands in the place of TorchTitan's run_train.sh: the same variables and arguments, on neuron-dist's launcher and
# device. SEQ_LEN shortens the samples, since a CPU computes them.
set -e

here=$(dirname "$(realpath "$0")")
export LOG_RANK=${LOG_RANK:-0}
export PYTHONPATH=$here${PYTHONPATH:+:$PYTHONPATH}
exec "${PYTHON:-python}" -m launch run -n "${NGPU:-8}" --local-ranks-filter "$LOG_RANK" --role rank --tee 3 \
    --preload titan_imports \
    "$here/train.py" --module "${MODULE:-llama3}" --config "${CONFIG:-llama3_debugmodel}" \
    --training.seq_len "${SEQ_LEN:-128}" "$@"
