"""Data: text from files, pipes and named corpora -> tokens in a memory map -> rows to train on."""

from .corpora import NAMED, Named, cache_folder, neighbours
from .corpus import Corpus, load
from .tokenizers import Tokenizer

__all__ = ["NAMED", "Corpus", "Named", "Tokenizer", "cache_folder", "load", "neighbours"]
