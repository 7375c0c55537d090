"""The API of Alibaba Cloud's Log Service, as its SDKs speak it: streams and consumer groups.

Start reading at `api`.
"""
