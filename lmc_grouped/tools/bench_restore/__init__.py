"""`make bench-restore`: what restoring a prefix costs, beside computing it and
beside LMCache's own multi-process connector, on one machine in one run.

Three servers with the same tiny model stand beside each other, each computing
on the same number of cores; one request is under way at any moment. Every round
sends new prompts, the same to all sides, and starts with another side. Ratios
are formed within a round. What idle servers and the rest of the machine use is
measured and printed: both have to be small for the times to mean anything.
"""
