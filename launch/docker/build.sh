#!/usr/bin/env bash
# Makes the images of launch/docker:  launch/docker/build.sh sandbox|trainer ...
#
# What can be fetched here is fetched here, by the same pins as everywhere else
# (node and the harnesses), so the sandbox image is a base plus copies. The base
# is debian:bookworm-slim from a registry, or, with CLAWJAX_DOCKER_BASE=local, a
# Debian tree that debootstrap makes on this machine (root; no registry asked).
# Variables: HARNESSES (pi claude_code codex), EXTRA (of the trainer: tpu),
# DOCKER (docker), TAG (latest).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
docker=${DOCKER:-docker}
tag=${TAG:-latest}
base=${CLAWJAX_DOCKER_BASE:-debian:bookworm-slim}
say() { echo "images: $*"; }

local_base() {
  if $docker image inspect clawjax-base:1 >/dev/null 2>&1; then return; fi
  command -v debootstrap >/dev/null || {
    say 'no debootstrap here: as root, apt-get install debootstrap'
    exit 1
  }
  say 'making a Debian tree (some minutes)'
  tree=$(mktemp -d)
  trap 'rm -rf "$tree"' RETURN
  debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv,git,curl,procps,ripgrep,bubblewrap \
    bookworm "$tree" "${CLAWJAX_DEBIAN:-http://deb.debian.org/debian}" >/dev/null
  rm -rf "$tree"/var/cache/apt/* "$tree"/var/lib/apt/lists/*
  # Certificates of the machine (a company's own, for example), for pip and npm
  # too, which bring theirs.
  local bundle=/etc/ssl/certs/ca-certificates.crt
  cp "$bundle" "$tree$bundle"
  tar -C "$tree" -c . | $docker import -c "ENV PIP_CERT=$bundle" \
    -c "ENV NODE_EXTRA_CA_CERTS=$bundle" - clawjax-base:1 >/dev/null
}

build() { # FILE NAME ARGUMENTS...   (context on stdin)
  # The classic builder and BuildKit both take a tar as context.
  local file=$1 name=$2
  shift 2
  $docker build -q --network "${CLAWJAX_DOCKER_NETWORK:-host}" \
    --build-arg BASE="$base" "$@" -f "$file" -t "$name:$tag" - >/dev/null
  say "$name:$tag"
}

sandbox() {
  local python=${CLAWJAX_VENV:-.venv}/bin/python stage held
  stage=$(mktemp -d)
  held=$("$python" -m clawjax.harness.bundle "$stage/opt" ${HARNESSES:-pi claude_code codex})
  cp launch/docker/sandbox.Dockerfile "$stage/Dockerfile"
  tar -C "$stage" -c . | build Dockerfile clawjax-sandbox --label clawjax.bundle="$held"
  rm -rf "$stage"
}

trainer() {
  git ls-files -z | tar --null -T - -c |
    build launch/docker/trainer.Dockerfile clawjax --build-arg EXTRA="${EXTRA:-}"
}

[ $# -gt 0 ] || { say 'wanted sandbox, trainer or both'; exit 2; }
if [ "$base" = local ]; then
  local_base
  base=clawjax-base:1
fi
for image in "$@"; do
  case $image in
    sandbox | trainer) "$image" ;;
    *) say "wanted sandbox or trainer, got $image"; exit 2 ;;
  esac
done
