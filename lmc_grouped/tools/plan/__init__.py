"""`lmc-grouped plan`: what a host budget holds, from a layout file alone.

`layout` reads the file, `answer` computes, `report` draws the table, `sizes`
reads and writes byte sizes. No engine and no tensors.
"""
