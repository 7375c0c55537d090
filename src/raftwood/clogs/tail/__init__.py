"""Follows files as they grow, are rotated, truncated and replaced; hands each line on once.

Start reading at `rules` (what becomes of files) and `checkpoints` (what is durable about them),
then `reader`, `lanes` and `tailer`. Imports clogs' frames, lines and masking, and the settings of
`client`; the way to the log is handed in (`seams.BatchDeliverer`).
"""
