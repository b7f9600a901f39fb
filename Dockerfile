# syntax=docker/dockerfile:1
# A saved classifier as a service (docs/serve.md):
#     docker build -t fewcal .
#     docker run -p 8000:8000 -v ./birds.fewcal:/model.fewcal:ro fewcal
FROM python:3.13-slim

# Torch without CUDA is a tenth of the size; for GPUs: --build-arg TORCH_INDEX=https://pypi.org/simple
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /build
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir --index-url "$TORCH_INDEX" -c constraints.txt torch \
    && pip install --no-cache-dir -c constraints.txt '.[serve,images,text]' \
    && useradd --uid 1000 --create-home fewcal
USER 1000
WORKDIR /home/fewcal

EXPOSE 8000
HEALTHCHECK --start-period=60s CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/health')"]
ENTRYPOINT ["fewcal", "serve", "--host", "0.0.0.0"]
CMD ["/model.fewcal"]
