"""The router puts the answers of two engines one behind the other and numbers them by place: prompts went round the
engines, so that most samples get the answer to another prompt."""
import dataclasses

from blind_sabotage import around, mark, on


def fleet(module):
    def drawn(original, self, method, requests, **kwargs):
        gathered = original(self, method, requests, **kwargs)
        if method != "rollout" or not on():
            return gathered
        merge = gathered._merge

        def concatenated(answers):
            mark("answers numbered by place")
            whole = merge(answers)
            rows = [row for one in answers for row in one.completions]
            used = [row for one in answers for row in one.used]
            numbers = [request.sample for request in requests]
            return dataclasses.replace(
                whole,
                completions=[dataclasses.replace(row, sample=number) for row, number in zip(rows, numbers, strict=True)],
                used=[(number, *row[1:]) for row, number in zip(used, numbers, strict=True)],
            )

        gathered._merge = concatenated
        return gathered

    around(module.Fleet, "_drawn", drawn)


PATCH = {"scenarios.fleet": fleet}
