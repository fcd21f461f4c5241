"""Text to token ids and back. Plain text never becomes a special token, whatever it says.

Files are the `tokenizer.json` of Hugging Face folders. Special tokens are added by their ids, in `template.py` only, so
that a user, a tool or the agent cannot forge a role by writing `<|im_start|>`.
"""

import functools
import json
from pathlib import Path
from typing import Callable, Iterable, Mapping, NamedTuple, Sequence

from tokenizers import Tokenizer as Files
from tokenizers import decoders, models, pre_tokenizers, trainers

from eau_jax.clients.answer import whole as whole_characters


class Tokenizer(NamedTuple):
    """A vocabulary with its special tokens kept apart."""

    encode: Callable[[str], Sequence[int]]   # plain text -> ids, none of them in `special`; half surrogate pairs as U+FFFD
    decode: Callable[[Sequence[int]], str]   # ids -> text, without the control tokens
    special: Mapping[str, int]               # every added token by its text
    vocab_size: int                          # largest id + 1


def from_folder(path: str | Path) -> Tokenizer:
    """The tokenizer of a model folder.

    Raises:
      ValueError: for a folder without a readable `tokenizer.json`.
    """
    return from_json(_read(Path(path) / "tokenizer.json"))


def from_json(text: str) -> Tokenizer:
    """The tokenizer that a `tokenizer.json` describes."""
    whole, record = Files.from_str(text), json.loads(text)
    special = {token["content"]: token["id"] for token in record["added_tokens"]}
    # Without its added tokens the tokenizer cannot recognise them in text; nothing else changes.
    plain = Files.from_str(json.dumps({**record, "added_tokens": [], "post_processor": None}))
    reserved = frozenset(special.values())
    control = frozenset(token["id"] for token in record["added_tokens"]
                        if token["special"] and token["content"] not in ("<think>", "</think>"))

    @functools.lru_cache(maxsize=8192)
    def encode(text: str) -> tuple[int, ...]:
        text = whole_characters(text)    # an agent's JSON can spell halves, and a tool may repeat them
        ids = plain.encode(text, add_special_tokens=False).ids
        if not reserved.isdisjoint(ids):  # the vocabulary itself holds the tag: letter by letter it cannot be formed
            ids = [i for letter in text for i in plain.encode(letter, add_special_tokens=False).ids]
        return tuple(ids)

    def decode(ids: Sequence[int]) -> str:
        return whole.decode([int(i) for i in ids if int(i) not in control], skip_special_tokens=False)

    size = 1 + max(whole.get_vocab(with_added_tokens=True).values())
    return Tokenizer(encode, decode, special, size)


def train_bpe(texts: Iterable[str], vocab_size: int, specials: Sequence[str], folder: str | Path) -> Tokenizer:
    """Trains a byte-level BPE tokenizer and writes it as a Hugging Face folder.

    Each digit is a token of its own, so that a small model can read numbers. Special tokens take the first ids, in
    order. The same texts in the same order give the same files.

    Args:
      vocab_size: at least 256 bytes and the specials; fewer come out where the texts hold no more pairs.
      specials: the first one is also named the padding token, the last one the end of a text.
    """
    specials = list(dict.fromkeys(specials))
    if vocab_size < 256 + len(specials):
        raise ValueError(f"vocab_size {vocab_size} is too small: 256 bytes and {len(specials)} special tokens need "
                         f"at least {256 + len(specials)}")
    files = Files(models.BPE())
    files.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    files.decoder = decoders.ByteLevel()
    files.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=specials, show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    files.save(str(folder / "tokenizer.json"))
    names = {"pad_token": specials[0], "eos_token": specials[-1]} if specials else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **names}, indent=2))
    return from_folder(folder)


def _read(path: Path) -> str:
    if not path.is_file():
        raise ValueError(f"{path} is not there; a model folder needs the fast tokenizer file that "
                         "transformers' AutoTokenizer.from_pretrained(...).save_pretrained(...) writes")
    text = path.read_text(encoding="utf-8")
    try:
        known = {"added_tokens", "model"} <= set(json.loads(text))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}, line {error.lineno}: not JSON ({error.msg})") from None
    if not known:
        raise ValueError(f"{path} is not a tokenizer file: it has no 'added_tokens' and 'model'")
    return text
