"""JetStream's own orchestrator and gRPC server give our scheduler's tokens."""

import asyncio
import logging
import socket

import numpy as np
import pytest

from clawjax.errors import EngineError
from clawjax.serving import jetstream
from clawjax.serving.scheduler import Scheduler
from clawjax.types import SamplingParams

from .conftest import make_engine

pytestmark = pytest.mark.filterwarnings('ignore')


class Letters:
  """A tokenizer of 97 letters."""

  eos_ids, pad_id = (96,), 0

  def encode(self, text):
    return [ord(c) - 32 for c in text]

  def decode(self, ids):
    return ''.join(chr(32 + i) for i in ids)


@pytest.fixture
def api():
  try:
    return jetstream.prepare()
  except EngineError as error:
    pytest.skip(str(error))


def greedy_by_scheduler(engine, prompts, count):
  scheduler = Scheduler(engine).start()
  client = scheduler.client()

  async def all_of_them():
    return await asyncio.gather(
      *[
        client.sample(
          np.asarray(p, np.int32),
          SamplingParams(temperature=0, max_tokens=count, stop_ids=(96,)),
        )
        for p in prompts
      ]
    )

  samples = asyncio.run(all_of_them())
  scheduler.stop()
  return [[i for i in s.token_ids.tolist() if i != 96] for s in samples]


def test_root_logger_is_left_alone(api):
  root = logging.getLogger()
  assert root.level != logging.DEBUG


def test_grpc_client_gets_the_schedulers_tokens(api, params):
  import grpc
  from jetstream.core import config_lib, server_lib
  from jetstream.core.proto import jetstream_pb2, jetstream_pb2_grpc

  rng = np.random.default_rng(0)
  prompts = [rng.integers(0, 96, n).tolist() for n in (3, 17, 40, 41, 70, 9)]
  want = greedy_by_scheduler(make_engine(params), prompts, 12)

  ours = []

  def create(devices):
    ours.append(jetstream.make_engine(make_engine(params), Letters()))
    return ours[0]

  class Config(config_lib.ServerConfig):
    interleaved_slices = ('cpu=1',)
    interleaved_engine_create_fns = (create,)

  with socket.socket() as probe:
    probe.bind(('localhost', 0))
    port = probe.getsockname()[1]
  server = server_lib.run(port, Config, server_lib.get_devices()[:1])
  try:
    with grpc.insecure_channel(f'localhost:{port}') as channel:
      stub = jetstream_pb2_grpc.OrchestratorStub(channel)
      streams = [
        stub.Decode(
          jetstream_pb2.DecodeRequest(
            token_content=jetstream_pb2.DecodeRequest.TokenContent(
              token_ids=prompt
            ),
            max_tokens=12,
          )
        )
        for prompt in prompts
      ]
      got = [
        [i for part in stream for i in part.stream_content.samples[0].token_ids]
        for stream in streams
      ]
  finally:
    server.stop()
  assert got == want
  ours[0].check()
