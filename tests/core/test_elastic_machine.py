"""A short run of the machine; its module runs longer ones."""

from hypothesis import settings

from tests.core.elastic_machine import ElasticMachine

TestElasticMachine = ElasticMachine.TestCase
TestElasticMachine.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
