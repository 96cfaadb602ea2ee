# Image of the sandboxes on Docker hosts that have no usable /usr of their own
# (the docker backend's option `image`). Built by
#   launch/docker/build.sh sandbox
# which puts node, the pinned harnesses and the agent loop into opt/ and says so
# in a label: what is there needs no mount from the host.
ARG BASE=debian:bookworm-slim
FROM ${BASE}
RUN command -v git && command -v python3 && command -v rg \
 || (apt-get update \
     && apt-get install -y --no-install-recommends \
       python3 python3-venv git ca-certificates curl procps ripgrep \
     && rm -rf /var/lib/apt/lists/*)
RUN useradd --uid 1000 --create-home --home-dir /home/agent agent \
 && mkdir -p /workspace /verifier /logs /corpus /run/clawjax \
 && chown agent:agent /workspace /verifier /logs
# At the paths that plans would mount them at.
COPY opt /opt
USER 1000:1000
WORKDIR /workspace
