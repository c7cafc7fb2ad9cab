"""From a rank map to a running job: the run shim, exports for launchers, the torchrun plug-in, checks in the job.

Light: what launch processes import loads neither torch nor numpy; those who need torch or jax import it when called.
"""
