"""Reading files as they grow, are rotated, cut and replaced; each line is handed on once.

Start reading at `rules` (what becomes of files) and `model` (what is durable about them), then
`reader`, `lanes` and `tailer`.
"""
