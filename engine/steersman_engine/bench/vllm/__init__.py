"""`steersman bench vllm`: what the adapter costs a vLLM engine, and that no sidecar's death harms it.

`run` works in Steersman's own environment. It starts `inside` with vLLM's interpreter, once around a
scheduler whose worker has no model (`driven`) and once around a real engine (`live`).
"""
