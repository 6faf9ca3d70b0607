# The REST endpoint. Azure builds it for deployment-container.yml; by hand, in the repository:
#   docker build -f scripts/azure/serve.Dockerfile -t retina-dist-serve .
#   docker run -p 5001:5001 -v RUN/checkpoints:/model -e AZUREML_MODEL_DIR=/model retina-dist-serve
# PyTorch's wheels bring CUDA along; the host needs NVIDIA's driver only, and none for the CPU.
FROM python:3.12-slim
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /opt/retina_dist
COPY . .
# hadolint ignore=DL3013
RUN pip install "torchvision>=0.26,<0.30" && pip install ".[serve]"
WORKDIR /
USER 65534
EXPOSE 5001
# exec: SIGTERM goes to the server, which then answers what it has taken. Azure checks the keys.
CMD ["/bin/sh", "-c", "exec python -m retina_dist.serve checkpoint=${AZUREML_MODEL_DIR}/best.pt host=0.0.0.0 port=5001"]
