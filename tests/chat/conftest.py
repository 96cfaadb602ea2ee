import pytest

from clawjax.chat import render, tokenizers


@pytest.fixture(scope='session')
def tokenizer():
  return tokenizers.load('tiny')


@pytest.fixture(scope='session')
def renderer(tokenizer):
  return render.Renderer(tokenizer)
