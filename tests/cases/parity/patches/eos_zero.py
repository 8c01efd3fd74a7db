"""The engine's answer has 0.0 as the log-probability of a sampled end token (it was cut off and put back)."""

import dataclasses

import plant


def patch(module):
    def generate(original, self, *args, **options):
        answers = original(self, *args, **options)
        if plant.SIDE["now"] != "candidate":
            return answers
        plant.mark(f"eos zero {len(answers)}")
        return [
            dataclasses.replace(answer, logprobs=(*answer.logprobs[:-1], 0.0))
            if answer.finish_reason == "stop" and answer.logprobs
            else answer
            for answer in answers
        ]

    plant.around(module.HFEngine, "generate", generate)


PATCH = {"scenarios.engines.hf.engine": patch}
