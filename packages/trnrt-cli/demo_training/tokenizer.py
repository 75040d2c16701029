"""Trains the byte-level BPE tokenizer on rendered dialogues; ids end with the 36 GLM tokens."""

import argparse
import itertools
import json
import re
from collections import Counter
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from demo_training.dialogue import stream
from demo_training.exclusions import Exclusions
from demo_training.render import MODEL_DIR, ChatFormat

VOCAB_SIZE = 1280
SEED = 11
NUM_DIALOGUES = 5000

NUM_SPACED = 160
SPACE = "\u0120"  # how byte-level BPE spells a space

# Single digits, capitalised words, other words with their leading space, punctuation, white space.
# Two departures from GLM make copying easier for a small model: one digit a token instead of
# groups of three, and a value is spelled by the same tokens in a sentence, in JSON and in a tool
# argument: the merges are learned on words without their space, and only the most frequent whole
# words take the space in afterwards.
PATTERN = (
    r"\p{N}| I(?= )|\p{Lu}[^\s\p{N}\p{P}\p{S}]*| ?[^\s\p{N}\p{P}\p{S}\p{Lu}]+"
    r"| ?[\p{P}\p{S}]+|\s+"
)
UNSPACED_PATTERN = r"\p{N}|\p{Lu}?[^\s\p{N}\p{P}\p{S}\p{Lu}]+|\p{Lu}+| ?[\p{P}\p{S}]+|\s+"

# Spelling and order of the released tokenizer.
ADDED_TOKENS = (
    "<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>", "<|system|>", "<|user|>",
    "<|assistant|>", "<|observation|>", "<|begin_of_image|>", "<|end_of_image|>",
    "<|begin_of_video|>", "<|end_of_video|>", "<|begin_of_audio|>", "<|end_of_audio|>",
    "<|begin_of_transcription|>", "<|end_of_transcription|>", "<|code_prefix|>",
    "<|code_middle|>", "<|code_suffix|>", "<think>", "</think>", "<tool_call>", "</tool_call>",
    "<tool_response>", "</tool_response>", "<arg_key>", "</arg_key>", "<arg_value>",
    "</arg_value>", "/nothink", "<|begin_of_box|>", "<|end_of_box|>", "<|image|>", "<|video|>",
)  # fmt: skip
EOS_TOKENS = ("<|endoftext|>", "<|user|>", "<|observation|>")
PAD_TOKEN = "<|endoftext|>"


def is_visible(token: str) -> bool:
    """Whether a decoder that skips special tokens keeps this one (parsers need to see it)."""
    return token.strip("</>") in {"think", "tool_call", "tool_response", "arg_key", "arg_value"}


def train(exclusions: Exclusions) -> Tokenizer:
    chat = ChatFormat()
    dialogues = itertools.islice(stream(SEED, exclusions), NUM_DIALOGUES)
    # Control tokens never meet the merges: added tokens are cut out before them.
    texts = [text for sample in dialogues for text in _plain_pieces(chat.render_sample(sample))]
    unspaced = _byte_level(models.BPE(), UNSPACED_PATTERN)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(ADDED_TOKENS) - NUM_SPACED,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    unspaced.train_from_iterator(texts, trainer)
    tokenizer = _byte_level(_with_spaced_words(unspaced, texts), PATTERN)
    tokenizer.add_tokens(
        [AddedToken(t, normalized=False, special=not is_visible(t)) for t in ADDED_TOKENS]
    )
    return tokenizer


def _byte_level(model: models.BPE, pattern: str) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _with_spaced_words(unspaced: Tokenizer, texts: list[str]) -> models.BPE:
    """Add merges, behind all others, of the space and the most frequent one-token words."""
    learned = json.loads(unspaced.to_str())["model"]
    vocab: dict[str, int] = learned["vocab"]
    counts = Counter(word for text in texts for word in re.findall(r" ([a-z]+)", text))
    words = [word for word, _ in counts.most_common() if word in vocab][:NUM_SPACED]
    vocab |= {SPACE + word: len(vocab) + index for index, word in enumerate(words)}
    merges = [tuple(merge) for merge in learned["merges"]] + [(SPACE, word) for word in words]
    return models.BPE(vocab, merges)


def _plain_pieces(text: str) -> list[str]:
    for token in ADDED_TOKENS:
        text = text.replace(token, "\0")
    return [piece for piece in text.split("\0") if piece]


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json."""
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": {
            str(tokenizer.token_to_id(token)): {
                "content": token,
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": not is_visible(token),
            }
            for token in ADDED_TOKENS
        },
        "additional_special_tokens": [token for token in ADDED_TOKENS if not is_visible(token)],
        "clean_up_tokenization_spaces": False,
        "do_lower_case": False,
        "eos_token": PAD_TOKEN,
        "pad_token": PAD_TOKEN,
        "padding_side": "left",
        "remove_space": False,
        "model_max_length": 8192,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=MODEL_DIR)
    arguments = parser.parse_args()
    save(train(Exclusions.load()), arguments.out)


if __name__ == "__main__":
    main()
