"""The structs of the headers, field for field."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char, c_char_p, c_int32, c_int64, c_uint32, c_uint64, c_void_p


class _Sized(ctypes.Structure):
    """A struct that begins with its own size. Fields that it lacks are the library's defaults."""

    def __init__(self, **fields):
        super().__init__(struct_size=ctypes.sizeof(self), **fields)


class UniqueId(ctypes.Structure):
    _fields_ = [("bytes", c_char * 128)]


class StreamStruct(_Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("kind", c_uint32),
        ("handle", c_void_p),
        ("device", c_int32),
    ]


class CommConfig(_Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("rank", c_int32),
        ("size", c_int32),
        ("id", POINTER(UniqueId)),
        ("start_timeout_ms", c_uint32),
        ("collective_timeout_ms", c_uint32),
        ("device_kind", c_uint32),
        ("device", c_int32),
        ("nccl_comm", c_void_p),
    ]


class ReducerConfig(_Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("arena", c_uint32),
        ("bucket_bytes", c_uint64),
        ("first_bucket_bytes", c_uint64),
        ("op", c_int32),
        ("step_timeout_ms", c_uint32),
        ("plan", c_uint32),
        ("order", c_uint32),
        ("last_bucket_bytes", c_uint64),
        ("average", c_uint32),
        ("wire_dtype", c_int32),
        ("unused", c_uint32),
        ("static_graph", c_uint32),
        ("nonfinite", c_uint32),
        ("shard", c_uint32),
        ("device_kind", c_uint32),
        ("max_in_flight", c_uint32),
    ]


class TensorDesc(_Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("dtype", c_int32),
        ("name", c_char_p),
        ("numel", c_uint64),
        ("expected_fires", c_uint32),
        ("reserved", c_uint32),
        ("ndim", c_uint64),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
    ]


class StepReportStruct(_Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("buckets", c_uint32),
        ("step", c_uint64),
        ("bytes", c_uint64),
        ("step_ns", c_int64),
        ("communication_ns", c_int64),
        ("exposed_ns", c_int64),
        ("order_wait_ns", c_int64),
        ("plan_version", c_uint64),
    ]


class HookBucket(_Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("bucket", c_uint32),
        ("step", c_uint64),
        ("dtype", c_int32),
        ("tensors", c_uint32),
        ("offset", c_uint64),
        ("bytes", c_uint64),
        ("data", c_void_p),
        ("tensor_ids", POINTER(c_uint32)),
        ("tensor_firsts", POINTER(c_uint64)),
        ("tensor_offsets", POINTER(c_uint64)),
        ("tensor_bytes", POINTER(c_uint64)),
    ]


class ShardInfoStruct(_Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("dtype", c_int32),
        ("bucket_offset", c_uint64),
        ("bucket_bytes", c_uint64),
        ("offset", c_uint64),
        ("bytes", c_uint64),
        ("gradient", c_void_p),
    ]


class ShardRangeStruct(_Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("bucket", c_uint32),
        ("tensor", c_uint32),
        ("dtype", c_int32),
        ("first", c_uint64),
        ("count", c_uint64),
        ("offset", c_uint64),
        ("gradient", c_void_p),
    ]


class ParamInfoStruct(_Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("is_default", c_uint32),
        ("name", c_char * 64),
        ("value", c_char * 128),
        ("default_value", c_char * 64),
        ("accepts", c_char * 128),
        ("sentence", c_char * 512),
        ("nccl_name", c_char * 64),
        ("source", c_char * 64),
    ]


class CounterInfoStruct(_Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("reserved", c_uint32),
        ("value", c_uint64),
        ("name", c_char * 64),
        ("unit", c_char * 32),
        ("sentence", c_char * 512),
    ]


class CommInfoStruct(_Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("rank", c_int32),
        ("size", c_int32),
        ("reads", c_uint32),
        ("sent_bytes", c_uint64),
        ("received_bytes", c_uint64),
        ("device", c_char * 256),
        ("notice", c_char * 256),
        ("gpu", c_char * 128),
        ("nccl", c_uint32),
        ("nccl_version", c_uint32),
    ]


class StepInfoStruct(_Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("buckets", c_uint32),
        ("step", c_uint64),
        ("bytes", c_uint64),
        ("wire_bytes", c_uint64),
        ("begin_ns", c_int64),
        ("last_gradient_ns", c_int64),
        ("end_ns", c_int64),
        ("compute_ns", c_int64),
        ("communication_ns", c_int64),
        ("exposed_ns", c_int64),
        ("backlog_ns", c_int64),
        ("tail_ns", c_int64),
        ("finish_ns", c_int64),
        ("order_wait_ns", c_int64),
    ]


class BucketInfoStruct(_Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("bucket", c_uint32),
        ("tensors", c_uint32),
        ("dtype", c_int32),
        ("bytes", c_uint64),
        ("ready_ns", c_int64),
        ("start_ns", c_int64),
        ("end_ns", c_int64),
        ("wire_ns", c_int64),
        ("first_ns", c_int64),
        ("queued_ns", c_int64),
    ]


# The C name of each struct, by which a test compares the layouts with the header's.
STRUCTS = {
    "noria_unique_id": UniqueId,
    "noria_stream": StreamStruct,
    "noria_comm_config": CommConfig,
    "noria_reducer_config": ReducerConfig,
    "noria_tensor_desc": TensorDesc,
    "noria_step_report": StepReportStruct,
    "noria_hook_bucket": HookBucket,
    "noria_shard_info": ShardInfoStruct,
    "noria_shard_range": ShardRangeStruct,
    "noria_param_info": ParamInfoStruct,
    "noria_counter_info": CounterInfoStruct,
    "noria_comm_info": CommInfoStruct,
    "noria_step_info": StepInfoStruct,
    "noria_bucket_info": BucketInfoStruct,
}
