"""Data: text from files, pipes and named corpora -> tokens in a memory map -> rows to train on."""

from ..system.deprecated import old_names
from .corpus import Corpus
from .cost_file import token_cost
from .load_corpus import load
from .named_corpora import NAMED, NamedCorpus, cache_folder, local_corpora
from .row_corpus import rows
from .tokenizers import Tokenizer

__all__ = ["NAMED", "Corpus", "NamedCorpus", "Tokenizer", "cache_folder", "load", "local_corpora", "rows", "token_cost"]

__getattr__ = old_names(__name__, {"Named": "NamedCorpus", "neighbours": "local_corpora"})
