#!/usr/bin/env bash
# Becomes one real vLLM engine for CPU with native gRPC. Ready when GET /health on HTTP_PORT answers 200: 45 to 90 s.
# usage: start-engine.sh VENV MODEL HTTP_PORT GRPC_PORT NIXL_PORT [engine arguments...]
# ENGINE_RANKS in the environment is the number of data-parallel ranks; their NIXL ports begin at NIXL_PORT.
# ENGINE_HASH_SEED is what block hashes begin at, 0 without it; an empty one leaves the engine's own.
# The model is served under its folder's name. NIXL_PORT "-" starts it without a KV connector. The settings are for machines with few cores: one OpenMP thread, one
# GiB of KV cache, no graph compilation.
set -euo pipefail
venv=${1:?} model=${2:?} http=${3:?} grpc=${4:?} nixl=${5:?}
shift 5
args=(--enforce-eager --dtype float32 --max-num-seqs 8 --max-model-len 1024
  --block-size 32) # NIXL on CPU takes multiples of 32 only
if [ "$nixl" != - ]; then
  export VLLM_NIXL_SIDE_CHANNEL_HOST=127.0.0.1 VLLM_NIXL_SIDE_CHANNEL_PORT=$nixl UCX_TLS=tcp,self,sm UCX_NET_DEVICES=lo
  args+=(--kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_both","kv_buffer_device":"cpu","kv_connector_extra_config":{"kv_lease_duration":30}}')
fi
export VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=1 VLLM_CPU_NUM_OF_RESERVED_CPU=0
export VLLM_ENGINE_READY_TIMEOUT_S=900 HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
[ -z "${ENGINE_HASH_SEED-0}" ] || export PYTHONHASHSEED=${ENGINE_HASH_SEED-0}
export LD_PRELOAD=$venv/lib/calm_poll.so
exec "$venv/bin/vllm-rs" serve "$model" --python "$venv/bin/python" --served-model-name "$(basename "$model")" \
  --host 127.0.0.1 --port "$http" --grpc-port "$grpc" --data-parallel-size "${ENGINE_RANKS:-1}" -- "${args[@]}" "$@"
