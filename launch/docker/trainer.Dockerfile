# Image of the trainer, with bubblewrap for its rollouts. Built by
#   launch/docker/build.sh trainer
# and run, with what bubblewrap needs in a container (user namespaces):
#   docker run --rm --security-opt seccomp=unconfined \
#     --security-opt apparmor=unconfined --cap-add SYS_ADMIN \
#     clawjax launch/run.sh --config=configs/quickstart.py
# On a TPU VM build with EXTRA=tpu.
ARG BASE=debian:bookworm-slim
FROM ${BASE}
RUN command -v bwrap && command -v git && command -v python3 \
 || (apt-get update \
     && apt-get install -y --no-install-recommends \
       python3 python3-venv git ca-certificates bubblewrap \
     && rm -rf /var/lib/apt/lists/*)
WORKDIR /clawjax
COPY . .
ARG EXTRA=""
# What launch/run.sh would make: it finds it made and goes on.
RUN launch/setup.sh "train,harness${EXTRA:+,$EXTRA}" bwrap pi \
 && rm -rf /root/.cache/pip /root/.npm
ENV PATH=/clawjax/.venv/bin:$PATH
CMD ["launch/run.sh", "--config=configs/quickstart.py"]
