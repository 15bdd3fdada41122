"""The type checker conftest.py hands to jaxtyping.

Beartype, with the usual rule that an int may stand for a float.
"""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
