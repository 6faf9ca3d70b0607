# Training: torch, Horovod with MPI and NCCL, sshd for mpirun, and this package. The context is the repository:
#   make image [CUDA=12.6] [RAY=yes]        or: docker build -f scripts/image/train.Dockerfile -t retina-dist-train .
# A checkout that a job brings along comes first: `python -m retina_dist.train` takes the package of the current folder.
#
# CUDA 13 needs NVIDIA's driver 580 or newer on the host; for an older one (525 or newer) --build-arg CUDA=12.6.3.
# With --build-arg RAY=yes, RAY_VERSION is what KubeRay's rayVersion has to name.
ARG CUDA=13.0.2
FROM docker.io/nvidia/cuda:${CUDA}-base-ubuntu24.04 AS base
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# NVIDIA's image lists the drivers that it starts on. Without that list the container starts, and torch checks the driver.
ENV NVIDIA_DISABLE_REQUIRE=1
# A compiler and Python's headers for Triton and torch.compile; Open MPI and sshd; the drivers of InfiniBand cards, which NCCL loads.
# DejaVu draws class names. The versions are the distribution's. libjpeg and NCCL come with the wheels of pillow, torchvision and torch.
# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        ca-certificates fonts-dejavu-core g++ ibverbs-providers libibverbs1 openmpi-bin openssh-client openssh-server python3-dev python3-venv wget \
    && rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_*
# Ubuntu's image has a user of this number. A password of "*" matches none, but unlike "!" does not lock the account for sshd.
RUN (! id -u 1000 > /dev/null 2>&1 || userdel -r "$(id -nu 1000)") \
    && useradd --create-home --uid 1000 --shell /bin/bash --password '*' retina \
    && mkdir -p /run/sshd
ENV PATH=/opt/retina/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# torch 2.14 is the last that is built for CUDA 12.
ARG CUDA
RUN /usr/bin/python3 -m venv /opt/retina \
    && if [ "${CUDA%%.*}" = 12 ]; then \
        pip install torch==2.14.1 torchvision==0.29.1 --index-url https://download.pytorch.org/whl/cu126; \
    else pip install torch==2.15.0 torchvision==0.29.2; fi

# Horovod takes minutes and depends on torch only. The toolkit stays in this stage; NCCL is the one that torch brought along.
FROM docker.io/nvidia/cuda:${CUDA}-devel-ubuntu24.04 AS horovod
# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        cmake g++ libopenmpi-dev make openmpi-bin python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
ENV PATH=/opt/retina/bin:$PATH
COPY --from=base /opt/retina /opt/retina
COPY scripts/install_horovod.py scripts/horovod.patch /opt/build/
RUN python /opt/build/install_horovod.py --gpu yes --mpi system --cache /opt/wheels \
    && mv /opt/wheels/*/horovod-*.whl /opt/build/

FROM base
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# What the package and the extras need, by setup.cfg; torch stays the one that Horovod was built for.
ARG RAY=no
ARG RAY_VERSION=2.60.0
ARG EXTRAS=horovod,fast-eval,azure,mlflow,analysis
COPY scripts/image/requirements.py setup.cfg /opt/build/
RUN python /opt/build/requirements.py "$EXTRAS$([ "$RAY" = yes ] && echo ,ray)" > /opt/build/requirements.txt \
    && pip freeze | grep -E '^torch(vision)?==' > /opt/build/constraints.txt \
    && echo "ray==$RAY_VERSION" >> /opt/build/constraints.txt \
    && pip install -r /opt/build/requirements.txt -c /opt/build/constraints.txt "azureml-mlflow>=1.62,<1.63"
COPY --from=horovod /opt/build/horovod-*.whl /opt/build/
# On a host with an older driver torch for CUDA 13 finds the base image's compatibility libraries.
COPY scripts/image/cuda_compat.py scripts/image/sshd.sh /opt/build/
ARG CUDA
# hadolint ignore=SC2016
RUN pip install --no-deps --no-index /opt/build/horovod-*.whl \
    && install -m 755 /opt/build/sshd.sh /usr/local/bin/retina-sshd \
    && echo 'PATH=/opt/retina/bin:$PATH' > /etc/profile.d/retina.sh \
    && if [ "${CUDA%%.*}" = 13 ]; then \
        packages=$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') \
        && cp /opt/build/cuda_compat.py "$packages" && echo "import cuda_compat" > "$packages/cuda_compat.pth"; fi
WORKDIR /opt/retina_dist
COPY setup.cfg pyproject.toml README.md LICENSE ./
COPY conf conf
COPY scripts scripts
COPY retina_dist retina_dist
RUN pip install --no-deps . && rm -rf build && python -c 'import azureml.mlflow, horovod.torch, retina_dist.train'
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="retina_dist training" \
    org.opencontainers.image.description="Trains RetinaNet and classifiers with torch DDP or Horovod" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="$VERSION" \
    org.opencontainers.image.revision="$REVISION"
WORKDIR /home/retina
# SkyPilot installs packages when it starts a container, which takes root: --build-arg RUN_AS=0.
ARG RUN_AS=1000
USER ${RUN_AS}
CMD ["python", "-m", "retina_dist", "--help"]
