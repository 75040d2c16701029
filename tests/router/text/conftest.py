import pytest

from support.demo_folder import DEMO_DIR
from support.tiny_tokenizer import write_tokenizer
from trnrt_router.text.chat_template import ChatTemplate
from trnrt_router.text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def tiny_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def tiny(tiny_dir):
    return Tokenizer.from_dir(tiny_dir)


@pytest.fixture(scope="session")
def demo():
    return Tokenizer.from_dir(DEMO_DIR)


@pytest.fixture(scope="session")
def template():
    return ChatTemplate.from_dir(DEMO_DIR)
