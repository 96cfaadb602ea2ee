# Image of the trainer, with bubblewrap for its rollouts. From the root of the
# checkout:
#   docker build -f launch/docker/trainer.Dockerfile -t clawjax .
#   docker run --rm --security-opt seccomp=unconfined \
#     --security-opt apparmor=unconfined --cap-add SYS_ADMIN \
#     clawjax launch/run.sh --config=configs/quickstart.py
# The options are for bubblewrap: user namespaces inside a container. On a TPU
# VM build with --build-arg EXTRA=tpu.
ARG BASE=debian:bookworm-slim
FROM ${BASE}
RUN apt-get update \
 && apt-get install -y --no-install-recommends \
      python3 python3-venv git ca-certificates bubblewrap \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /clawjax
COPY . .
ARG EXTRA=""
RUN python3 -m venv .venv \
 && .venv/bin/pip install -q --no-cache-dir -e ".${EXTRA:+[$EXTRA]}"
ENV PATH=/clawjax/.venv/bin:$PATH
CMD ["launch/run.sh", "--config=configs/quickstart.py"]
