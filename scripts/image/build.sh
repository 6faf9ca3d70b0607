#!/usr/bin/env bash
# Build an image with docker, podman or buildah, whichever works here:   scripts/image/build.sh train|serve
# Variables: CUDA=13 or 12.6, RAY=yes, RUN_AS=0 (a container that runs as root), IMAGE=NAME:TAG, BUILD_OPTIONS.
set -euo pipefail
cd "$(dirname "$0")/../.."
kind=${1:-}
if [[ $kind != train && $kind != serve ]]; then
  echo "error: there is no image '$kind'; give train or serve." >&2
  exit 2
fi
case ${CUDA:-13} in
  13 | 13.0 | 13.0.2) cuda=13.0.2 ;;
  12.6 | 12.6.3) cuda=12.6.3 ;;
  *) echo "error: CUDA=$CUDA has no torch that this version takes; use CUDA=13 or CUDA=12.6." >&2; exit 2 ;;
esac
for builder in docker podman buildah; do # a docker client alone, without its daemon, builds nothing
  "$builder" info >/dev/null 2>&1 && break
  builder=
done
if [[ -z $builder ]]; then
  echo "error: neither docker, podman nor buildah works here; install one (Debian: apt-get install podman) or start docker's daemon." >&2
  exit 2
fi
version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' retina_dist/base/__init__.py)
suffix=
[[ ${RAY:-no} != yes ]] || suffix=-ray
image=${IMAGE:-retina-dist-$kind:$version-cuda${cuda%.*}$suffix}
options=(-f "scripts/image/$kind.Dockerfile" -t "$image" --build-arg "CUDA=$cuda" --build-arg "VERSION=$version"
  --build-arg "REVISION=$(git rev-parse HEAD 2>/dev/null || echo unknown)")
[[ $kind == serve ]] || options+=(--build-arg "RAY=${RAY:-no}" --build-arg "RUN_AS=${RUN_AS:-1000}")
# OCI's own format has no HEALTHCHECK. Podman may be installed under docker's name, but only docker answers with a capital.
[[ $("$builder" --version) == Docker* ]] || options+=(--format docker)
read -ra more <<<"${BUILD_OPTIONS:-}"
set -x
exec "$builder" build "${options[@]}" "${more[@]}" .
