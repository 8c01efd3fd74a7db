"""The preflight check: what will break an RLHF run on this machine or cluster.

`gather` measures one node (standard library only, so that Ray can ship it to workers), `facts` holds what was measured,
`checks` are pure functions of facts, and `examine` combines them into a `reports.doctor_model.Report`.
"""
