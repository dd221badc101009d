"""x"""
from ._why import why
