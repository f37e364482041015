# The locked dependencies on Ray's image, for Kubernetes (rayjob.yaml): docker build -t REGISTRY/ratchet:0.2.0 .
FROM rayproject/ray:2.60.0-py311-cu128
RUN command -v make > /dev/null || (sudo apt-get update -qq && sudo apt-get install -y -qq make)
WORKDIR /home/ray/ratchet
COPY --chown=ray:users . .
RUN make setup
# On the shared volume: the hub's cache; copies and work in progress if the store is a bucket.
ENV PATH=/home/ray/ratchet/.venv/bin:$PATH HF_HOME=/mnt/ratchet/huggingface RATCHET_CACHE=/mnt/ratchet/cache
