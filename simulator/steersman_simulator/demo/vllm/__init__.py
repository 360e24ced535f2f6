"""`steersman demo --vllm`: arms on real `vllm serve` processes, one of them steered by a sidecar.

An arm is a way of launching vLLM, or a policy on the one server that was launched to be steered. All
servers run at once, each with the adapter, and one at a time gets traffic: rounds are interleaved without
a restart, and every figure comes from the same kind of report.
"""
