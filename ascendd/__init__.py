"""ascendd: run large language models on Huawei Ascend NPU servers the way good operators run a database."""

__version__ = "0.1.0"
