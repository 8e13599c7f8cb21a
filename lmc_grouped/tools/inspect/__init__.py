"""`lmc-grouped inspect`: what `plan` answers, for a model directory.

`command` has the arguments, `ask` starts vLLM in a process of its own, `program` is
what runs there, `rank` the worker without weights that it shows to vLLM, `messages` what
crosses between the processes.
"""
