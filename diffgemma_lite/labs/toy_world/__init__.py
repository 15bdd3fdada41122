"""A world so small that its distribution is exact, and samplers that write in it.

Walked through in notebooks 06 and 07.

world    all phrases with their probabilities; what a perfect denoiser believes
sampler  how far from the truth each sampler ends, with no model error in it
"""
