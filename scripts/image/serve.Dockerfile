# The REST endpoint. The context is the repository:
#   make image-serve [CUDA=12.6]            or: docker build -f scripts/image/serve.Dockerfile -t retina-dist-serve .
#   docker run --gpus all -p 5001:5001 -v RUN/checkpoints:/model -e RETINA_DIST_API_KEY=... retina-dist-serve
# It listens on all addresses: without RETINA_DIST_API_KEY anyone who reaches the port can use it. Without --gpus it uses the CPU.
# PyTorch's wheels bring CUDA along; the host needs NVIDIA's driver only, 580 or newer, and none for the CPU. For an older one (525
# or newer): --build-arg CUDA=12.6.3
FROM docker.io/library/python:3.12.12-slim-bookworm
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
RUN useradd --create-home --uid 1000 retina
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1
# torch 2.14 is the last that is built for CUDA 12.
ARG CUDA=13.0.2
RUN if [ "${CUDA%%.*}" = 12 ]; then \
        pip install torch==2.14.1 torchvision==0.29.1 --index-url https://download.pytorch.org/whl/cu126; \
    else pip install torch==2.15.0 torchvision==0.29.2; fi
# The versions that setup.cfg allows; torch stays the one above.
COPY scripts/image/requirements.py setup.cfg /opt/build/
RUN python /opt/build/requirements.py serve > /opt/build/requirements.txt \
    && pip freeze | grep -E '^torch(vision)?==' > /opt/build/constraints.txt \
    && pip install -r /opt/build/requirements.txt -c /opt/build/constraints.txt
WORKDIR /opt/retina_dist
COPY setup.cfg pyproject.toml README.md LICENSE ./
COPY conf conf
COPY scripts scripts
COPY retina_dist retina_dist
RUN pip install --no-deps . && rm -rf build
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="retina_dist serving" \
    org.opencontainers.image.description="Answers images with detections or classes over HTTP" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="$VERSION" \
    org.opencontainers.image.revision="$REVISION"
WORKDIR /home/retina
USER 1000
EXPOSE 5001
HEALTHCHECK --start-period=120s --timeout=5s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:5001/healthz', timeout=4)"]
# exec: SIGTERM goes to the server, which then answers what it has taken. On Azure AZUREML_MODEL_DIR is set, and Azure checks the keys.
CMD ["/bin/sh", "-c", "exec python -m retina_dist.serve checkpoint=${AZUREML_MODEL_DIR:-/model}/best.pt host=0.0.0.0 port=5001"]
