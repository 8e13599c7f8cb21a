"""Ways of copying that need a CUDA device. Not accepted on GPU: nothing here has run on one."""
