"""`lmc-grouped simulate`: request traces through the real index, writer and hit code.

`trace`, `traces` and `trace_file` say what is asked; `pools` cuts the budget;
`engine` imitates how an engine steps and what its tables hold; `replay` drives
the core with both; `answer`, `report` and `plot` say what came out.
"""
