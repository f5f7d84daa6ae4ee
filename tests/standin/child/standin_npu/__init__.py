"""Host arithmetic for operators on stand-in NPU tensors; lives in the processes under test, not in the tests."""
