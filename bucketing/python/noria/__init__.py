"""noria: gradients averaged between the processes of a job, over RDMA verbs.

The C API of ``noria/bucketing.h`` as a module, by ctypes alone::

    communicator = noria.Communicator()              # rank and size from the launcher
    reducer = noria.Reducer(communicator)
    ids = [reducer.add(name, numel, noria.Dtype.FLOAT32) for name, numel in gradients]
    reducer.seal()
    each step:
        reducer.step_begin()
        reducer.grad_ready(ids[i], address)          # from each gradient hook, any thread
        report = reducer.step_end()                  # averaged gradients are in place

A call that fails raises a ``NoriaError`` with the library's own text. Calls that block release the
interpreter. ``noria.torch`` holds what PyTorch users want in place of this.
"""

from noria import observe
from noria._library import (
    Average,
    Dtype,
    HookMoment,
    Op,
    Order,
    Plan,
    Unused,
    library_path,
    status_name,
    version,
)
from noria.communicator import Communicator, Memory, Stream, Work, unique_id
from noria.errors import (
    AbortedError,
    ArgumentError,
    DeviceError,
    DuplicateReadyError,
    HookError,
    InternalError,
    LibraryError,
    MismatchError,
    MissingError,
    NetworkError,
    NonFiniteError,
    NoriaError,
    OrderError,
    OutOfMemoryError,
    PeerError,
    StateError,
    TimedOutError,
    UnsupportedError,
)
from noria.reducer import Bucket, Reducer, Shard, ShardRange, StepReport, TensorPart

__version__ = "0.1.0"
