"""`lmc-grouped plan`: what a host budget holds, from a layout file alone.

`layout` reads and writes the file, `answer` computes, `report` draws the table,
`arguments` and `sizes` read what was asked. No engine and no tensors.
"""
