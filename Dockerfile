# The locked dependencies on Ray's image, for `ray up cluster.yaml` and for Kubernetes (rayjob.yaml):
#   docker build -t REGISTRY/ratchet:0.2.0 . && docker push REGISTRY/ratchet:0.2.0
FROM rayproject/ray:2.60.0-py311-cu128
RUN command -v make > /dev/null || (sudo apt-get update -qq && sudo apt-get install -y -qq make)
WORKDIR /home/ray/ratchet
COPY --chown=ray:users . .
# faiss-gpu is the same library with kernels for GPUs, which take the place of faiss-cpu. boto3 starts machines on AWS.
RUN make setup && .venv/bin/uv pip uninstall -q --python .venv faiss-cpu && \
    .venv/bin/uv pip install -q --python .venv -c requirements.lock faiss-gpu==1.15.1 boto3
# On the shared volume: the hub's cache; copies and work in progress if the store is a bucket.
ENV PATH=/home/ray/ratchet/.venv/bin:$PATH HF_HOME=/mnt/ratchet/huggingface RATCHET_CACHE=/mnt/ratchet/cache
