"""`lmc-grouped certify`: does a running server give the right output from restored prefixes?"""
