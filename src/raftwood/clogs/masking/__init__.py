"""What is sensitive in lines is made unreadable, a block of lines at a time, before it leaves.

Built-in rules (`built_in`, `cards`, `secrets`) look for short texts that all they mask has in or
before it, which is fast, and look closer only there. Rules of users (`patterns`) are regular
expressions. Neither ever joins two lines.
"""

from raftwood.clogs.masking.built_in import BUILT_IN_RULES, BuiltInRule, built_in_rules
from raftwood.clogs.masking.masking import Masking
from raftwood.clogs.masking.patterns import MaskRule

__all__ = ["BUILT_IN_RULES", "BuiltInRule", "MaskRule", "Masking", "built_in_rules"]
