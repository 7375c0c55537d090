"""Follows files as they grow, are rotated, truncated and replaced; delivers each line once.

Start reading at `rules` (what happens to files) and `checkpoints` (their durable state), then
`reader`, `lanes` and `tailer`. Imports clogs' frames, lines and masking, and the settings of
`client`; its owner passes in the way to the log (`seams.BatchDeliverer`).
"""
