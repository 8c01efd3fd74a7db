"""Order: does every sample have its own response?"""
